"""ResNet-50 on crops of real photographs."""
