const theme = localStorage.getItem('kapelle.theme');
if (theme) document.documentElement.dataset.theme = theme;
