"""Faster R-CNN with non-maximum suppression in numpy."""
