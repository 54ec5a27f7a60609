"""What is measured on a trained model: held-out losses, attention sink, gate, routers."""
