"""What a weight is and how it is stored."""
