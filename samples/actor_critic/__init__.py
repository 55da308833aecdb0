"""Actor-critic with the environment inside the training step."""
