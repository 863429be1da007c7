# Series of R and of Debian's R packages, as tables: Rscript r_series.R FOLDER
#
# Each series becomes FOLDER/NAME.csv with columns `time` and `y`, for benchmarks/series.py. It prints numbers of points
# and no values: nothing was tuned on these series. It needs r-base-core and r-cran-aer, boot, dynlm, forecast, lmtest,
# robustbase, strucchange, surveillance and tseries.
#
# step: month, quarter or year; an object with times has its first time, others get `first`. Or the interval in days
# (`business`: Monday to Friday) or seconds; objects with dates have their own times.

series <- read.table(header = TRUE, text = "
name                  package      object             column     step     first
driver_deaths         datasets     UKDriverDeaths     -          month    -
accidental_deaths     datasets     USAccDeaths        -          month    -
lung_deaths           datasets     ldeaths            -          month    -
nottingham            datasets     nottem             -          month    -
australian_gas        forecast     gas                -          month    -
treasury_10_years     tseries      tcm                tcm10y     month    -
bond_yield            AER          BondYield          -          month    -
dutch_sales           AER          DutchSales         -          month    -
orange_juice          AER          FrozenJuice        price      month    -
black_pepper          AER          PepperPrice        black      month    -
durables              strucchange  durab              y          month    -
us_income             strucchange  USIncExp           income     month    -
rio_negro             boot         manaus             -          month    -
fed_funds             lmtest       fyff               y          month    -
commodity_prices      lmtest       jocci              y          month    -
earnings              datasets     JohnsonJohnson     -          quarter  -
british_gas           datasets     UKgas              -          quarter  -
approval              datasets     presidents         -          quarter  -
argentine_prices      AER          ArgentinaCPI       -          quarter  -
german_unemployment   AER          GermanUnemployment unadjusted quarter  -
non_durables          AER          UKNonDurables      -          quarter  -
industrial_output     AER          USProdIndex        unadjusted quarter  -
dollars_per_pound     AER          USMacroSW          gbpusd     quarter  -
real_interest         strucchange  RealInt            -          quarter  -
german_money          dynlm        M1Germany          logm1      quarter  -
lake_huron            datasets     LakeHuron          -          year     -
new_haven             datasets     nhtemp             -          year     -
us_stocks             tseries      NelPlo             stock.prices year   -
unemployment_of_years tseries      NelPlo             unemp      year     -
chickens              lmtest       ChickEgg           chicken    year     -
marriages             strucchange  Grossarl           marriages  year     1700
dax                   datasets     EuStockMarkets     DAX        business 1991-07-01
marks_per_pound       AER          MarkPound          -          business 1984-01-03
swiss_stocks          AER          MSCISwitzerland    -          dated    -
gold_price            AER          GoldSilver         gold       dated    -
icelandic_river       tseries      ice.river          flow.vat   86400    1972-01-01
icelandic_air         tseries      ice.river          temp       86400    1972-01-01
new_york_heat         datasets     airquality         Temp       86400    1973-05-01
dutch_stocks          AER          DJFranses          -          604800   1980-01-07
campylobacter         surveillance campyDE            case       604800   2001-12-31
dutch_adverts         AER          DutchAdvert        tv         2419200  1978-01-02
swiss_air             robustbase   ambientNOxCH       ba         86400    2004-01-01
internet_users        datasets     WWWusage           -          60       2000-01-01
")

as_text <- function(number, step) {  # a time of `ts` as text
  first <- round(number * c(month = 12, quarter = 4, year = 1)[[step]])
  switch(step,
    month = sprintf("%04d-%02d", first %/% 12, first %% 12 + 1),
    quarter = sprintf("%04d Q%d", first %/% 4, first %% 4 + 1),
    year = sprintf("%04d", first)
  )
}

times_of <- function(object, step, first, num) {
  if (step == "dated") return(format(as.Date(zoo::index(object))))
  if (step %in% c("month", "quarter", "year")) {
    numbers <- if (first == "-") as.numeric(time(object)) else as.numeric(first) + seq_len(num) - 1
    return(as_text(numbers, step))
  }
  if (step == "business") {
    days <- seq(as.Date(first), by = "day", length.out = 2 * num)
    return(format(days[as.POSIXlt(days)$wday %in% 1:5][seq_len(num)]))
  }
  format(as.POSIXct(first, tz = "UTC") + as.numeric(step) * (seq_len(num) - 1), "%Y-%m-%dT%H:%M:%S", tz = "UTC")
}

suppressMessages(library(zoo))
folder <- commandArgs(trailingOnly = TRUE)[[1]]
for (row in split(series, seq_len(nrow(series)))) {
  suppressWarnings(data(list = row$object, package = row$package))  # `ldeaths` has no file of its own
  object <- get(row$object)
  values <- as.numeric(if (row$column == "-") object else object[, row$column])
  table <- data.frame(time = times_of(object, row$step, row$first, length(values)), y = values)
  table <- table[!is.na(table$y), ]
  write.csv(table, file.path(folder, paste0(row$name, ".csv")), row.names = FALSE, quote = FALSE)
  version <- format(packageVersion(row$package))
  cat(row$name, ": ", nrow(table), " points, from ", row$package, " ", version, "\n", sep = "")
}
