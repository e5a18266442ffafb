"""Views of traced variables: values, matrices and the source that made them."""
