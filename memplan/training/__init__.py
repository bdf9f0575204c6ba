"""What traced and live training steps share, so that both run the same step. Imports torch."""
