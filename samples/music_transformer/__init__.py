"""MusicTransformer with relative attention on Bach chorales."""
