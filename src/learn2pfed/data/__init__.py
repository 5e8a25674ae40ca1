"""Who has what: federated data and where it comes from."""
