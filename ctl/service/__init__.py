"""A running controller as others meet it: session, lock, socket, page, files, what is shown."""
