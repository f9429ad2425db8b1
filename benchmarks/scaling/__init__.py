"""What more workers bring and what they cost the dispatcher."""
