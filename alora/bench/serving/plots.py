def write_plots(results, folder):
    return []
