"""What the sample programs share: the driver, bit-for-bit comparison, random streams and data."""
