def html_page(results, report, plots):
    return report
