"""What all log formats share: bytes, text and lines, tables, steps; formats are in `readers`."""
