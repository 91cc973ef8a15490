"""Diagnosis, suggestions, presets and tuning: returned and printed, never applied."""
