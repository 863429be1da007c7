"""params.yaml: the accepted keys and values (schema), reading and error messages (loading, parsing), and presets."""
