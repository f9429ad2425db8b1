"""The floor: broker, weights store, processes, logs, metrics, errors. Knows no settings and no stage."""
