# Tables of R packages for rivals.py, as NAME.csv.gz with the target last:
#
#     Rscript benchmarks/r_tables.R DIR
#
# Debian: r-base-core and r-cran-{mlbench,mass,kernlab,caret,aer,th.data,ggplot2}. Rows with missing
# values are left out (HouseVotes84: a level of its own), at most 2,500 rows are kept, drawn with
# R's seed 0; categories become indicator columns, those of more than 20 levels are left out.

tables <- list(
  c("mlbench", "Glass", "Type"), c("mlbench", "Ionosphere", "Class"),
  c("mlbench", "PimaIndiansDiabetes", "diabetes"), c("mlbench", "Sonar", "Class"),
  c("mlbench", "Vehicle", "Class"), c("mlbench", "Vowel", "Class"),
  c("mlbench", "HouseVotes84", "Class"), c("mlbench", "Satellite", "classes"),
  c("kernlab", "spam", "type"), c("kernlab", "musk", "Class"),
  c("caret", "segmentationData", "Class"), c("AER", "SwissLabor", "participation"),
  c("AER", "HMDA", "deny"), c("AER", "BankWages", "job"), c("TH.data", "GlaucomaM", "Class"),
  c("MASS", "birthwt", "low"), c("MASS", "crabs", "sp"), c("MASS", "synth.te", "yc"),
  c("mlbench", "Ozone", "V4"), c("mlbench", "Servo", "Class"), c("AER", "CASchools", "read"),
  c("AER", "HousePrices", "price"), c("AER", "CPS1985", "wage"),
  c("AER", "TeachingRatings", "eval"), c("AER", "PSID1982", "wage"),
  c("ggplot2", "diamonds", "price"), c("ggplot2", "mpg", "hwy"), c("datasets", "quakes", "mag"),
  c("MASS", "nlschools", "lang"), c("MASS", "cpus", "perf"), c("MASS", "GAGurine", "GAG"),
  c("caret", "Sacramento", "price"), c("caret", "cars", "Price")
)
classes <- 18  # of which so many have classes
left_out <- list(
  segmentationData = c("Cell", "Case"), CASchools = c("district", "school", "math"),
  birthwt = "bwt", mpg = c("cty", "model"), cpus = c("estperf", "name"), Sacramento = "zip",
  TeachingRatings = "prof", nlschools = "class", crabs = "index"
)

folder <- commandArgs(trailingOnly = TRUE)[1]
for (i in seq_along(tables)) {
  name <- tables[[i]][2]
  holder <- new.env()
  data(list = name, package = tables[[i]][1], envir = holder)
  rows <- as.data.frame(holder[[name]])
  rows <- rows[, !(names(rows) %in% left_out[[name]])]
  if (name == "HouseVotes84") {
    rows[] <- lapply(rows, function(v) addNA(v, ifany = TRUE))
    rows$Class <- factor(as.character(rows$Class))
  }
  rows <- rows[complete.cases(lapply(rows, unclass)), ]
  set.seed(0)
  if (nrow(rows) > 2500) rows <- rows[sample(nrow(rows), 2500), ]
  y <- rows[[tables[[i]][3]]]
  if (i <= classes) y <- as.integer(factor(y)) - 1L
  x <- rows[, names(rows) != tables[[i]][3], drop = FALSE]
  x[] <- lapply(x, function(v) if (is.character(v) || is.ordered(v)) factor(v, ordered = FALSE) else v)
  many <- vapply(x, function(v) is.factor(v) && nlevels(droplevels(v)) > 20, logical(1))
  x <- droplevels(x[, !many, drop = FALSE])
  x <- x[, vapply(x, function(v) length(unique(v)) > 1, logical(1)), drop = FALSE]
  x <- model.matrix(~ ., model.frame(~ ., x, na.action = na.pass))[, -1, drop = FALSE]
  colnames(x) <- make.names(colnames(x), unique = TRUE)
  out <- gzfile(file.path(folder, paste0(name, ".csv.gz")), "w")
  write.table(data.frame(x, target = y), out, sep = ",", row.names = FALSE, quote = FALSE)
  close(out)
  cat(name, nrow(x), "rows,", ncol(x), "columns\n")
}
