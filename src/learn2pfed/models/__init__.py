"""Networks by name, or one's own `nn.Module`, as functions of one flat vector of parameters."""
