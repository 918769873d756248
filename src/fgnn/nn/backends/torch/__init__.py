"""The torch backend: chunked, cache-blocked, nothing per edge kept for backward."""
