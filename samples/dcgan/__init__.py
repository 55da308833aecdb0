"""DCGAN with two optimizers on handwritten digits."""
