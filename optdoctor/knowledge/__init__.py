"""Data without heavy imports: families, layer kinds, number formats, spellings of knobs."""
