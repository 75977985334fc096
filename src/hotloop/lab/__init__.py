"""Plans -> series: one fresh process for each run, never two at once, saved after each."""
