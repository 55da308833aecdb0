"""A residual net with scheduled DropBlock on photographs."""
