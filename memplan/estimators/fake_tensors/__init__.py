"""What is known of tensors that hold no values: shapes, values that follow from the batch, and what is presumed."""
