"""What a training state is made of: its leaves and their record, its initial value, where each leaf goes, the data position."""
