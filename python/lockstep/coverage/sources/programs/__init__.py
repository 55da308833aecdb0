"""The programs of the source `python`; see world.py for how one is written."""
