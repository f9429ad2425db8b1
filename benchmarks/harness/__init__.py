"""What experiments share: figures, simulated runs, a Kafka of their own."""
