"""What is optimized: data, loss, regularizer and mirror map."""
