"""YOLOv3 for digits placed on photographs."""
