"""What is optimised: data, loss, regularizer and mirror map."""
