"""What the compared methods minimise, as pure functions of embeddings, predictions and labels; a file each."""
