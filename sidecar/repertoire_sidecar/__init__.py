"""Runs DSPy templates in a separate process; the host provides models, pages and scores."""
