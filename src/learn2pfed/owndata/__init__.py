"""A person's own table: asked and answered, put into words, written down as a folder, and used afterwards."""
