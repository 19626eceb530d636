"""What libraries print when they fail, and the fault that each text stands for."""
