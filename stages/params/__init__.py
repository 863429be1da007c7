"""params.yaml: the accepted keys and values (schema), reading and messages (loading, parsing), and presets."""
