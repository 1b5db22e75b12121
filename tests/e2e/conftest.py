"""Options of the black-box tests. ./do test gives none of them."""


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="ten times the kills, all 20,000 requests, idle workers (minutes)")
    parser.addoption("--seed", type=int, default=5, help="what tests draw at random begins here")
