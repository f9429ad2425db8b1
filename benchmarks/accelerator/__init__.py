"""The whole loop with vLLM and DeepSpeed sharing one device, and where its time goes."""
