"""The paper: the cell (four equations), Θ, L cells, supervision, learning, and the limit of many cells."""
