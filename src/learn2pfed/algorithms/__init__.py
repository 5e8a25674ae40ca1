"""What is computed and what is sent: the contract, Learn2pFed, twelve baselines, and closed-form references."""
