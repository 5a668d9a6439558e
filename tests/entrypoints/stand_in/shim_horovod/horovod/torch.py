SIZE = "a stand-in"
