"""What a small model learns of sums of reasoning-gym."""
