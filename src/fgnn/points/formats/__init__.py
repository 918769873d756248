"""One file per cloud format, each with `open_reader(path)` and `write(first, chunks, path, count)`."""
