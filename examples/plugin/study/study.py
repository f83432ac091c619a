"""A study: one figure and, in claims.yaml, one claim."""

from matplotlib.figure import Figure as Drawing

from fco_cli.reporting import Figure, Results, Section, Study, algorithm_style


class Inertia(Study):
    """Objective of the methods on the recorded runs."""

    name = "inertia"

    def sections(self, results: Results) -> list[Section]:
        runs = results.table()
        table = runs[runs["status"] == "finished"].groupby("algo", as_index=False)["objective"].median()

        def draw() -> Drawing:
            figure = Drawing(figsize=(3.3, 2), layout="constrained")
            axis = figure.subplots()
            styles = [algorithm_style(algo) for algo in table["algo"]]
            axis.barh([style.label for style in styles], table["objective"], color=[style.color for style in styles])
            axis.set_xlabel("objective, median over runs")
            return figure

        figure = Figure("inertia", draw, "Final objective of every method.", numbers=table)
        return [Section("inertia", "Clients with inertia", figures=[figure])]
