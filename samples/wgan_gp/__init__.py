"""WGAN with gradient penalty on handwritten digits."""
