"""A file rewritten for streaming: other chunks, another compression, rows in another order; all else is kept."""
