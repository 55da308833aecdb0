"""TreeLSTM by recursion over syntax trees."""
