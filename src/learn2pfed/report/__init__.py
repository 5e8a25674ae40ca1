"""Tables, figures and one page, made from records on disk alone."""
