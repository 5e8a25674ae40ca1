"""What is computed and what is sent: the contract, Learn2pFed, and closed-form references."""
